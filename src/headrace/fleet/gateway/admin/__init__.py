"""What operators see and change while a gateway runs, behind keys of their own."""
