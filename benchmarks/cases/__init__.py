"""What is measured: the cases, the checks of their results, and the baselines."""
