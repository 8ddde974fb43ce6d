"""The reconciler: carries plans out, step by step, journalled."""
