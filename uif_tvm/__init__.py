"""uif: the layer between model frameworks and chips, built on Apache TVM."""

__version__ = "0.1.0"
