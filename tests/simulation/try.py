import sys,time
sys.path.insert(0,'tests')
from simulation.postgres_run import PostgresRun
seed=sys.argv[1]; rate=float(sys.argv[2]); inst=int(sys.argv[3])
r=PostgresRun(seed,rate=rate,instances=inst,trace=True)
t=time.time()
try:
    print(r.run())
except BaseException:
    print("\n".join(r.simulation.trace[-60:]))
    raise
print(time.time()-t, r.simulation.steps, r.simulation.now)
