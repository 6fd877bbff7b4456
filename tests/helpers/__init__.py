"""What the tests share. Programs of their own find it by PYTHONPATH: see ``child.environment``."""
