"""Why a pod or a job waits, and who holds a share."""
