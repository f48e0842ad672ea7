"""Programs that simulate private federated learning.

`python -m experiments.simulate` runs from the repository's root. Where the package is
installed, this folder is `tff_dp_aggregators.experiments`, and the programs are the
commands `tff-dp-simulate` and so on; so imports in here are relative.
"""
