"""What coordinator and worker agree on, below TFF's messages.

Calls of TFF's executor service go through a worker as they are. What a worker says of
itself is one method more, with an empty request and JSON for an answer.
"""

import tff_dp_aggregators
from tff_dp_aggregators.base import version

SERVICE = 'tensorflow_federated.v0.ExecutorGroup'
GET_EXECUTOR = 'GetExecutor'
DISPOSE_EXECUTOR = 'DisposeExecutor'
METHODS = (
  GET_EXECUTOR,
  'CreateValue',
  'CreateCall',
  'CreateStruct',
  'CreateSelection',
  'Compute',
  'Dispose',
  DISPOSE_EXECUTOR,
)

STATUS = '/tff_dp_aggregators.Worker/Status'
STATUS_FORMAT = 2
# The request of who looks after the worker and is no coordinator, whose request is
# empty. A worker whose coordinators are gone frees its memory.
PROBE = b'probe'
# States of a worker in its status.
SERVING, STARTING, STALLED = 'serving', 'starting', 'stalled'

_MAX_MESSAGE_BYTES = 2 * 10**9  # What TFF, whose sizes are 32-bit, can make at most.
MESSAGE_OPTIONS = (
  ('grpc.max_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_receive_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_send_message_length', _MAX_MESSAGE_BYTES),
)
# Of a channel to this machine, which no proxy of the environment is to be asked for. A
# process that takes one connection alone would not take the next one.
LOCAL_CHANNEL_OPTIONS = (
  *MESSAGE_OPTIONS,
  ('grpc.enable_http_proxy', 0),
  ('grpc.client_idle_timeout_ms', 2**31 - 1),
  ('grpc.use_local_subchannel_pool', 1),
)
# Of both ends of a connection between machines. A peer that vanished, with no word from
# its kernel, is noticed after half a minute; a server takes pings that often.
KEEPALIVE_OPTIONS = (
  ('grpc.keepalive_time_ms', 20_000),
  ('grpc.keepalive_timeout_ms', 10_000),
  ('grpc.keepalive_permit_without_calls', 1),
  ('grpc.http2.max_pings_without_data', 0),
  ('grpc.http2.min_ping_interval_without_data_ms', 5_000),
)


def software() -> dict[str, str]:
  """Versions that have to be the same on both sides, by name.

  They decide what is sent and how it is read, and the last digits of what is computed.
  """
  own = {'tff-dp-aggregators': tff_dp_aggregators.__version__}
  return {**own, **version.of_libraries()}


def path_of(method: str) -> str:
  """What gRPC calls a method of TFF's executor service."""
  return f'/{SERVICE}/{method}'
