"""Pictures of runs, for people."""

from typing import Optional

from matplotlib import figure

from . import metrics


def draw(
  path: str,
  metric: metrics.Metric,
  rounds: list[int],
  measured: list[float],
  epsilons: list[Optional[float]],
  title: str,
  delta: float,
) -> None:
  """Draws a metric, and epsilon where there is one, over rounds.

  Args:
    path: PNG file to write.
    metric: What was measured.
    rounds: Rounds completed.
    measured: The metric after each.
    epsilons: Spent by then; `None` without privacy.
    title: Above the picture.
    delta: At which epsilon was read.
  """
  picture = figure.Figure(figsize=(7.2, 4.2), dpi=120, layout='constrained')
  axes = picture.add_subplot()
  axes.set_title(title, loc='left', fontsize=10)
  axes.set_xlabel('round')
  axes.set_ylabel(f'test {metric.name}', color='tab:blue')
  axes.plot(rounds, measured, color='tab:blue', linewidth=1.8)
  axes.set_ylim(*metric.limits)
  axes.set_xlim(left=0)
  axes.grid(alpha=0.3)
  axes.annotate(
    f'{measured[-1]:.3f}',
    (rounds[-1], measured[-1]),
    xytext=(-4, 6),
    textcoords='offset points',
    ha='right',
    color='tab:blue',
  )
  spent = [epsilon for epsilon in epsilons if epsilon is not None]
  if len(spent) == len(rounds):
    right = axes.twinx()
    right.set_ylabel(f'epsilon spent at delta = {delta:g}', color='tab:orange')
    right.step(rounds, spent, where='post', color='tab:orange', linewidth=1.4)
    right.set_ylim(0.0, 1.15 * max(spent))
    right.annotate(
      f'{spent[-1]:.2f}',
      (rounds[-1], spent[-1]),
      xytext=(-4, -14),
      textcoords='offset points',
      ha='right',
      color='tab:orange',
    )
  picture.savefig(path)
