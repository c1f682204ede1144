"""Recorded runs: the schema of their files, the writer and the reader.

run.json                 a :class:`~adelfl.records.schema.RunInfo`, written before the first round
rounds.jsonl             a :class:`~adelfl.records.schema.Row` per merge
events.jsonl             an event per line, where the backend logs events; simulated runs have none
wall.jsonl               wall-clock seconds per round: the only file that differs between equal runs
checkpoint.safetensors   weights and the lengths of the files above; removed when the run ends
model.safetensors        the final weights
result.json              a :class:`~adelfl.records.schema.RunResult`; its presence marks a finished run
failed.json              the error that stopped the run
"""
