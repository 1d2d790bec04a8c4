"""The operations on paged memory and between the matrix products: one interface, a reference and compiled paths behind it."""
