from turbospec_bench.ablation.mechanisms.mechanism import Mechanism

NOTHING = Mechanism("nothing", "`adaptive` as it is", {})
MECHANISMS = {}
