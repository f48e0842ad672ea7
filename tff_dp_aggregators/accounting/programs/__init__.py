"""The programs `report`, `plan`, `participation` and `vectors`, and their flags."""
