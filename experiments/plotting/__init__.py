"""Pictures of runs and of comparisons, for people; all are drawn in `charts`.

Knows nothing of TensorFlow.
"""
