"""Judges module outputs of any transformers model: exact values in f64 and their rounding errors.

`python -m xcheck.evaluator` is the worker process that the xcheck program drives. torch and transformers are imported
in this package only; install them with `pip install xcheck-dump[evaluator]`.
"""
