def draw(w): pass
