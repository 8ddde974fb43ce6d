"""Two ways through the code, as they run: ``python -m tools.walks`` (or ``make walks``)."""
