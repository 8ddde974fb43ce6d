"""Which MIG layouts on which GPUs serve a demand (``partage plan --demand``)."""
