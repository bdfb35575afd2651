"""The inference IR: types, graphs, ops, text form, verifier, reference interpreter, targets and schemas."""
