"""Simulate phones as they were measured: step times, bandwidth and availability from files.

python examples/traced_phones.py
"""

from pathlib import Path
from tempfile import mkdtemp

import adelfl as ad

FILES = {
    "speeds": "device,batch,train_ms\nold,1,14\nold,16,44\nnew,1,5\nnew,16,20\n",
    "bandwidth": "trace,seconds,Mbps\ntrain,0,4.0\ntrain,30,0.5\nhome,0,20\nhome,30,20\n",
    "availability": "device,half_hours\n0,111111110000\n1,000011111111\n",
}

if __name__ == "__main__":
    folder = Path(mkdtemp())
    changes = ["fleet.kind=traces", "fleet.start_hour=2", "training.cohort=10", "training.budget=20"]
    for name, text in FILES.items():
        (folder / f"{name}.csv").write_text(text)
        changes.append(f"fleet.{name}={folder / name}.csv")
    for method in ("adel", "fedbuff"):
        result = ad.simulate(ad.build_experiment(ad.load_run(None, [*changes, f"strategy.name={method}"])))
        print(f"{method}: {result.final_accuracy:.1%}")
