"""Publishing: from the arguments of ``send`` to the receipt."""
