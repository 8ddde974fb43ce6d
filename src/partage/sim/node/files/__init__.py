"""Machine files and faults as people write them: readers and the writer."""
