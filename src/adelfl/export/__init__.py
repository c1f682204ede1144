"""Records for other programs to read: TensorBoard, MLflow, CSV. While a run goes or after it, by the same code."""
