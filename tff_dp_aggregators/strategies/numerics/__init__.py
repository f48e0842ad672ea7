"""The mathematics behind the strategies: bands, power series, searches, descent.

Nothing here knows any one strategy; those who look for one find it a level up.
"""
