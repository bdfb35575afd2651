"""One module per engine: a process that loads a model, warms up, and answers workloads as JSON lines."""
