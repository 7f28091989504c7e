"""The variables by which processes of a run know, and show, what they belong to."""

JOB_VARIABLE = "LOOM_JOB"  # every process of an app has the app's id under this name
NODE_VARIABLE = "LOOM_NODE"  # and the name of its node
ATTEMPT_VARIABLE = "LOOM_ATTEMPT"  # how often it was started again
ROLE_VARIABLE = "LOOM_ROLE"  # a rank's role
GENERATION_VARIABLE = "LOOM_GENERATION"  # which membership of its job a rank was started in
INCARNATION_VARIABLE = "LOOM_LIFE"  # number of the rank's process, if ranks are replaced one by one
STANDIN_VARIABLE = "LOOM_STANDIN"  # 1: it comes to a group that is under way
CHECKPOINTS_VARIABLE = "LOOM_CHECKPOINT_ROOT"  # where its run's checkpoints are, or would be
UNTIL_VARIABLE = "LOOM_UNTIL"  # the step at which loops end
OWN_END_VARIABLE = "LOOM_OWN_END"  # where they ended by themselves; from there on until that step
RESUME_VARIABLE = "LOOM_RESUME"  # the checkpoint to resume from; 1: there is none yet
SPEC_VARIABLE = "LOOM_JOB_SPEC"  # the whole job as JSON, where it was described as one
PAGE_VARIABLE = "LOOM_PAGE"  # the shared page a rank writes its progress to
UPLINK_VARIABLE = "LOOM_AGENT"  # the socket at which its node agent takes a rank's messages
AGENT_VARIABLE = "LOOM_AGENT_OF"  # launch process, agent and keeper have their app's id here
STORE_VARIABLE = "LOOM_STORE"  # where the ranks of an attempt meet
TOKEN_VARIABLE = "LOOM_LAUNCH_TOKEN"  # between a launch process and its agents only
INNER_VARIABLE = "LOOM_INNER"  # the place of a rank whose children may be ranks of its job
MODULES_VARIABLE = "LOOM_MODULES"  # what is still to be loaded, in words; set and empty: nothing

# What a rank has unless its user says otherwise.
RANK_DEFAULTS = {
    "PYTHONUNBUFFERED": "1",
    "THP_MEM_ALLOC_ENABLE": "1",  # large tensors in huge pages: there sooner, and gone sooner
}
# And where it has peers: torch asks for their names when it connects; a lost answer costs 5 s.
RESOLVER_DEFAULTS = {"RES_OPTIONS": "timeout:1 attempts:1"}

# What launchers set for each of their ranks; joined, a rank's place.
PLACE_VARIABLES = ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")
