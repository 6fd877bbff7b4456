"""What the guard costs: ``python -m benchmarks`` prints one table."""
