"""A study of your own: tune methods with equal effort in several settings, and test a claim over seeds.

adelfl reproduce examples.own_study:STUDY
"""

from adelfl.experiments.study import Cell, Claim, Study

STUDY = Study(
    name="own-study",
    title="Digits: does a plan help when time is short, and when it is not?",
    source="own",
    changes=("data.name=digits", "data.partition=dirichlet", "data.alpha=0.5"),
    cells=(
        Cell("starved", "15% depth", ("training.depth=0.15",)),
        Cell("ample", "50% depth", ("training.depth=0.5",)),
    ),
    strategies=("adel", "salf", "oracle"),
    claims=(Claim("adel ends above salf", "adel", "salf"),),
    rates=(0.1, 0.3),  # each method gets the best of them on validation data
    tuning=("data.validation=0.2",),
    seeds=3,
)
