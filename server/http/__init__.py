"""HTTP: listening, admission, bodies, responses, errors, metrics."""
