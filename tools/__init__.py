"""Tools for those who change this project. Not part of the product."""
