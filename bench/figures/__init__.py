"""Figures in one house style: colours that every common form of colour blindness tells apart, units on axes, n and interval shown."""
