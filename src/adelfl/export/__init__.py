"""Exports of records to TensorBoard, MLflow and CSV, during a run or afterwards."""
