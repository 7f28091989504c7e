"""What the screen says when it is asked for help."""

from torchloom.cli.monitor.words import help_text

_KEYS = """\
Tab, Shift+Tab  next pane          arrows, PgUp, PgDn, Home, End  move
p  pause the job    r  resume it   x  stop it   s  set a knob   d  devices
l  logs             m  next curve on top
o  ranks: by number, or those first that need a look
/  filter the jobs or ranks: words, or the number of a rank; Esc forgets it
:  prompt           ?  this        q  quit; jobs run on

Ranks, curves and events are those of the job under the cursor; the curves
those of the rank under the cursor, where it logs any. LAG is how many steps
a rank is behind the fastest.

At the prompt (Tab completes, Up brings back what was typed):

"""

SCREEN_HELP = _KEYS + help_text()
