import json
import random
import secrets
import uuid

import numpy
import torch

drawn = [random.random(), numpy.random.rand(), torch.rand(1).item(), torch.initial_seed()]
print(json.dumps([*map(str, drawn), secrets.token_hex(8), str(uuid.uuid4()), str(uuid.uuid1())]))
