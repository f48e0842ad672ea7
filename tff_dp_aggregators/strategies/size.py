"""How large a strategy may be, so that one is refused before memory ends.

Every kind has arrays with a number for each round: errors, sensitivities, coefficients.
Those with bands of their own in each round keep rounds x bands numbers.
"""

# Some ten arrays of so many rounds are made at once: a gigabyte.
MAX_ROUNDS = 10**7
# An optimiser has several copies of so many numbers.
MAX_NUMBERS = 10**8


def check_rounds(num_rounds: int) -> int:
  """Returns `num_rounds`, or raises ValueError if arrays of them fill the memory."""
  if num_rounds > MAX_ROUNDS:
    raise ValueError(
      f'num_rounds must be at most {MAX_ROUNDS}: a strategy has several numbers for '
      f'each round in memory; got {num_rounds}. State fewer rounds, or compose the '
      'events of runs of at most that many.'
    )
  return num_rounds


def check_bands(num_rounds: int, num_bands: int) -> None:
  """Raises ValueError if bands of their own in each round fill the memory."""
  check_rounds(num_rounds)
  if num_rounds * num_bands > MAX_NUMBERS:
    raise ValueError(
      f'num_bands={num_bands} in num_rounds={num_rounds} are more than the '
      f'{MAX_NUMBERS} numbers that a banded strategy may have; use at most '
      f'{max(1, MAX_NUMBERS // num_rounds)} bands, at most {MAX_NUMBERS // num_bands} '
      'rounds, or a toeplitz or blt strategy, the same in every round.'
    )
