"""The one place where TensorFlow Privacy is imported.

TFF's next releases carry these classes themselves; moving there changes this file
alone.
"""

from tensorflow_privacy.privacy.dp_query.dp_query import DPQuery
from tensorflow_privacy.privacy.dp_query.dp_query import SumAggregationDPQuery
from tensorflow_privacy.privacy.dp_query.normalized_query import NormalizedQuery

__all__ = ['DPQuery', 'NormalizedQuery', 'SumAggregationDPQuery']
