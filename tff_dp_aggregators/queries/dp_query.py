"""The one place where TensorFlow Privacy is imported.

TFF's next releases carry these classes themselves; moving there changes this file
alone.
"""

from typing import Any

from tensorflow_privacy.privacy.dp_query import normalized_query
from tensorflow_privacy.privacy.dp_query.dp_query import DPQuery
from tensorflow_privacy.privacy.dp_query.dp_query import SumAggregationDPQuery

__all__ = ['DPQuery', 'NormalizedQuery', 'SumAggregationDPQuery']


class NormalizedQuery(normalized_query.NormalizedQuery):
  """TensorFlow Privacy's query of this name: the result of another, divided.

  Records and events are those of the other query.
  """

  def __init__(self, numerator_query: SumAggregationDPQuery, *, denominator: float):
    """Initializes the query.

    Args:
      numerator_query: What sums and adds noise.
      denominator: What its result is divided by.
    """
    super().__init__(numerator_query, denominator)

  def initial_sample_state(self, template: Any = None) -> Any:
    """Returns the sum of no records of the other query.

    Args:
      template: Structure of tensors or their specs like a record; `None` for what the
        other query knows of its records.

    Raises:
      TypeError: As the other query.
      ValueError: As the other query, or if there is no template and it needs one.
    """
    if template is None:
      return self._numerator.initial_sample_state()
    return self._numerator.initial_sample_state(template)
