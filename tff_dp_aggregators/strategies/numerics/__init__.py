"""The mathematics behind the strategies, none of which is known here."""
