"""The programs `report`, `plan` and `participation`, and the flags they share."""
