"""Client of the example app: load the samples of a node, emulate its speed, and train until the deadline."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

app = ClientApp()

SECONDS_PER_SAMPLE = 0.002  # and layer, on a device of speed 1


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train for one round; torch is imported here so that the measured time includes the import."""
    from adelfl.flower import train as train_in_time
    from digits_app.task import load_node, network, weaken

    node = int(context.node_config.get("partition-id", 0))
    nodes = int(context.node_config.get("num-partitions", context.run_config["nodes"]))
    slowdown = float(context.node_config.get("slowdown", 8.0 if node == nodes - 1 else 1.0))
    task = str(context.run_config["task"])
    model, data = network(task), load_node(task, node, nodes)
    config = message.content["config"]
    if "adelfl-batch" not in config:
        return _stock(message, context, model, data, slowdown)
    weaken(model, SECONDS_PER_SAMPLE * slowdown * config["adelfl-batch"])
    return train_in_time(message, model, data)


def _stock(message: Message, context: Context, model, data, slowdown: float) -> Message:  # noqa: ANN001
    """Do the same work as a plain Flower client, without a time limit."""
    import torch
    from flwr.app import ArrayRecord, MetricRecord, RecordDict
    from torch.nn import functional

    from adelfl.flower.client import plain_step
    from digits_app.task import weaken

    config = context.run_config
    batch = int(config["batch"])
    weaken(model, SECONDS_PER_SAMPLE * slowdown * batch)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = data
    for _ in range(int(config["local-iterations"])):
        rows = torch.randint(len(y), (batch,))
        model.zero_grad()
        functional.cross_entropy(model(x[rows]), y[rows]).backward()
        plain_step(model, float(config["learning-rate"]))
    metrics = MetricRecord({"num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)
