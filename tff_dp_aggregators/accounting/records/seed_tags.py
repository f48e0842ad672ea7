"""What ledgers have of seeds: tags that are equal for equal ones, and slow to try."""

import functools
import hashlib

# Seeds below it are taken to be guessed.
GUESSABLE = 2**64


@functools.cache
def tag_of_seed(purpose: str, seed: int) -> str:
  """What tells a seed from others: equal for equal ones, and slow to try.

  Whoever guesses the seed can see by it that they are right, at 64 MiB and some tenths
  of a second a guess; so it hides seeds of 128 bits, and small ones hardly.

  Args:
    purpose: What it is the seed of, 'noise' or 'sampling'.
    seed: The seed.

  Example:
    >>> tag_of_seed('noise', 1) == tag_of_seed('noise', 1)
    True
    >>> tag_of_seed('noise', 1) == tag_of_seed('sampling', 1)
    False
  """
  digest = hashlib.scrypt(
    str(int(seed)).encode(),
    salt=f'tff_dp_aggregators seed of {purpose}'.encode(),
    n=2**16,
    r=8,
    p=1,
    maxmem=2**27,
    dklen=16,
  )
  return f'scrypt:{digest.hex()}'
