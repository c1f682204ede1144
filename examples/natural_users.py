"""Train on the data of real users: every user is a device that holds the samples of that user.

python examples/natural_users.py
"""

import numpy as np

import adelfl as ad
from adelfl.data import users_dataset


def activities() -> ad.Dataset:
    """Return made-up measurements of 20 people: 9 features, 2 activities, 10 to 105 samples each."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(20), np.arange(10, 110, 5))
    labels = rng.choice(["sit", "walk"], users.size)
    habits = rng.normal(size=(20, 9))  # people move differently
    x = (labels == "walk")[:, None] + habits[users] + rng.normal(size=(users.size, 9))
    return users_dataset(x, labels, users, split="within", test_share=0.2)


if __name__ == "__main__":
    changes = ["data.factory=natural_users:activities", "data.partition=users", "training.depth=0.5"]
    for method in ("adel", "salf"):
        experiment = ad.build_experiment(ad.load_run(None, [*changes, f"strategy.name={method}"]))
        print(method, experiment.partition.sizes, f"{ad.simulate(experiment).final_accuracy:.1%}")
