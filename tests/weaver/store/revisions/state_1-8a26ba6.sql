BEGIN TRANSACTION;
CREATE TABLE agents (
	id TEXT NOT NULL, 
	host TEXT NOT NULL, 
	boot TEXT NOT NULL, 
	pid INTEGER NOT NULL, 
	state TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	first_seen DOUBLE NOT NULL, 
	greeted_at DOUBLE NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "agents" VALUES('node-1','node1','boot',42,'up','',1.79497749002070450781e+09,1.79497749002070450781e+09);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('state_1');
CREATE TABLE command_acks (
	command TEXT NOT NULL, 
	generation INTEGER NOT NULL, 
	rank INTEGER NOT NULL, 
	incarnation TEXT NOT NULL, 
	state TEXT NOT NULL, 
	step INTEGER, 
	ahead INTEGER, 
	why TEXT NOT NULL, 
	"before" TEXT NOT NULL, 
	"after" TEXT NOT NULL, 
	at DOUBLE NOT NULL, 
	PRIMARY KEY (command, generation, rank)
);
INSERT INTO "command_acks" VALUES('0a6eca50a5d54228',0,0,'','applied',2,NULL,'','0.1','0.25',1.79497749015270495411e+09);
INSERT INTO "command_acks" VALUES('0a6eca50a5d54228',0,1,'','applied',2,NULL,'','0.1','0.25',1.79497749015270495411e+09);
CREATE TABLE commands (
	id TEXT NOT NULL, 
	number INTEGER NOT NULL, 
	job TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	payload TEXT NOT NULL, 
	at INTEGER, 
	author TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	asked_at DOUBLE NOT NULL, 
	state TEXT NOT NULL, 
	generation INTEGER NOT NULL, 
	offer INTEGER NOT NULL, 
	effective INTEGER, 
	"before" TEXT NOT NULL, 
	"after" TEXT NOT NULL, 
	outcome TEXT NOT NULL, 
	ended_at DOUBLE, 
	PRIMARY KEY (id)
);
INSERT INTO "commands" VALUES('0a6eca50a5d54228',1,'job-1','knob','{"lr":{"value":0.25,"hold":false}}',NULL,'ada','a try',1.79497749011287164688e+09,'applied',0,1,2,'0.1','0.25','',1.79497749015269732479e+09);
CREATE TABLE desired (
	job TEXT NOT NULL, 
	name TEXT NOT NULL, 
	value TEXT NOT NULL, 
	hold BOOLEAN NOT NULL, 
	command TEXT NOT NULL, 
	effective INTEGER, 
	PRIMARY KEY (job, name)
);
INSERT INTO "desired" VALUES('job-1','lr','0.25',0,'0a6eca50a5d54228',2);
CREATE TABLE devices (
	uuid TEXT NOT NULL, 
	node TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	"index" INTEGER NOT NULL, 
	memory INTEGER NOT NULL, 
	state TEXT NOT NULL, 
	source TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	changed_at DOUBLE NOT NULL, 
	PRIMARY KEY (uuid)
);
INSERT INTO "devices" VALUES('node1/cpu/0','node1','cpu',0,0,'healthy','','',1.7949774900210080146e+09);
INSERT INTO "devices" VALUES('node1/cpu/1','node1','cpu',1,0,'healthy','','',1.79497749002102160455e+09);
INSERT INTO "devices" VALUES('node1/cpu/9','node1','cpu',0,0,'healthy','','',1.79497749002102613448e+09);
CREATE TABLE drmap (
	device TEXT NOT NULL, 
	process TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	PRIMARY KEY (device, process)
);
INSERT INTO "drmap" VALUES('node1/cpu/9','job-2/trainer/0',1);
CREATE TABLE epochs (
	epoch INTEGER NOT NULL, 
	host TEXT NOT NULL, 
	pid INTEGER NOT NULL, 
	started_at DOUBLE NOT NULL, 
	PRIMARY KEY (epoch)
);
INSERT INTO "epochs" VALUES(1,'vm',22213,1.79497748997526025771e+09);
CREATE TABLE events (
	seq INTEGER NOT NULL, 
	time DOUBLE NOT NULL, 
	job TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	rank INTEGER NOT NULL, 
	step INTEGER, 
	author TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	facts TEXT NOT NULL, 
	PRIMARY KEY (seq)
);
INSERT INTO "events" VALUES(1,1.79497749002074933047e+09,'','agent_up',-1,NULL,'','','{"agent":"node-1","host":"node1","pid":42}');
INSERT INTO "events" VALUES(2,1.79497749002084589007e+09,'job-1','job_started',-1,NULL,'','','{"name":"job-1","owner":"","scheduler":"","handle":"","run_id":"job-1","generation":0}');
INSERT INTO "events" VALUES(3,1.79497749002086615568e+09,'job-1','rank_up',0,NULL,'','','{"pid":1000,"node":"node1","generation":0}');
INSERT INTO "events" VALUES(4,1.79497749002089858057e+09,'job-1','rank_up',1,NULL,'','','{"pid":1001,"node":"node1","generation":0}');
INSERT INTO "events" VALUES(5,1.79497749002092456815e+09,'job-2','job_started',-1,NULL,'','','{"name":"job-2","owner":"","scheduler":"","handle":"","run_id":"job-2","generation":0}');
INSERT INTO "events" VALUES(6,1.79497749002093386645e+09,'job-2','rank_up',0,NULL,'','','{"pid":1000,"node":"node1","generation":0}');
INSERT INTO "events" VALUES(7,1.79497749011291790003e+09,'job-1','command_accepted',-1,NULL,'ada','a try','{"command":"0a6eca50a5d54228","kind":"knob","payload":{"lr":{"value":0.25,"hold":false}},"before":null,"after":null}');
INSERT INTO "events" VALUES(8,1.79497749011629486085e+09,'job-1','command_preparing',-1,NULL,'ada','a try','{"command":"0a6eca50a5d54228","kind":"knob","payload":{"lr":{"value":0.25,"hold":false}},"before":null,"after":null}');
INSERT INTO "events" VALUES(9,1.79497749012246012685e+09,'job-1','command_committed',-1,2,'ada','a try','{"command":"0a6eca50a5d54228","kind":"knob","payload":{"lr":{"value":0.25,"hold":false}},"before":null,"after":null}');
INSERT INTO "events" VALUES(10,1.79497749015272879602e+09,'job-1','command_applied',-1,2,'ada','a try','{"command":"0a6eca50a5d54228","kind":"knob","payload":{"lr":{"value":0.25,"hold":false}},"before":0.1,"after":0.25}');
INSERT INTO "events" VALUES(11,1.79497749015858459476e+09,'job-1','job_state',-1,NULL,'','ranks_ended','{"before":"RUNNING","after":"COMPLETED"}');
INSERT INTO "events" VALUES(12,1.79497749016780138017e+09,'job-1','rank_gone',0,NULL,'','ranks_ended','{"pid":1000,"node":"node1","generation":0}');
INSERT INTO "events" VALUES(13,1.79497749017369413382e+09,'job-1','rank_gone',1,NULL,'','ranks_ended','{"pid":1001,"node":"node1","generation":0}');
CREATE TABLE facts (
	name TEXT NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "facts" VALUES('drmap_version','2');
CREATE TABLE jobs (
	id TEXT NOT NULL, 
	name TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	scheduler TEXT NOT NULL, 
	handle TEXT NOT NULL, 
	state TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	run_id TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	generation INTEGER NOT NULL, 
	created_at DOUBLE NOT NULL, 
	started_at DOUBLE, 
	ended_at DOUBLE, 
	facts TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "jobs" VALUES('job-1','gpt','ada','local','local://x/job-1','COMPLETED','ranks_ended','job-1',1,0,1.794977490020812273e+09,1.794977490020812273e+09,1.79497749015842914584e+09,'{}');
INSERT INTO "jobs" VALUES('job-2','bert','ada','local','local://x/job-2','RUNNING','','job-2',1,0,1.79497749002091145512e+09,1.79497749002091145512e+09,NULL,'{}');
CREATE TABLE ranks (
	job TEXT NOT NULL, 
	role TEXT NOT NULL, 
	rank INTEGER NOT NULL, 
	generation INTEGER NOT NULL, 
	incarnation TEXT NOT NULL, 
	world_size INTEGER NOT NULL, 
	local_rank INTEGER NOT NULL, 
	node TEXT NOT NULL, 
	agent TEXT NOT NULL, 
	pid INTEGER NOT NULL, 
	started INTEGER NOT NULL, 
	replica TEXT NOT NULL, 
	devices TEXT NOT NULL, 
	boundary TEXT NOT NULL, 
	knobs TEXT NOT NULL, 
	state TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	registered_at DOUBLE NOT NULL, 
	ended_at DOUBLE, 
	PRIMARY KEY (job, role, rank)
);
INSERT INTO "ranks" VALUES('job-1','trainer',0,0,'job-1-trainer-0-0',2,0,'node1','node-1',1000,5,'trainer/0','["node1/cpu/0"]','api','[{"name":"lr","value":0.1,"type":"float","low":0.0,"high":1.0}]','gone','ranks_ended',1.79497749002078771591e+09,1.79497749016758298881e+09);
INSERT INTO "ranks" VALUES('job-1','trainer',1,0,'job-1-trainer-1-0',2,1,'node1','node-1',1001,5,'trainer/1','["node1/cpu/1"]','api','[{"name":"lr","value":0.1,"type":"float","low":0.0,"high":1.0}]','gone','ranks_ended',1.79497749002087926863e+09,1.79497749017349958423e+09);
INSERT INTO "ranks" VALUES('job-2','trainer',0,0,'job-2-trainer-0-0',1,0,'node1','node-1',1000,5,'trainer/0','["node1/cpu/9"]','api','[{"name":"lr","value":0.1,"type":"float","low":0.0,"high":1.0}]','up','',1.79497749002090621001e+09,NULL);
CREATE TABLE runs (
	id TEXT NOT NULL, 
	job TEXT NOT NULL, 
	name TEXT NOT NULL, 
	config TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "runs" VALUES('job-1','job-1','job-1','{}',1.794977490020812273e+09);
INSERT INTO "runs" VALUES('job-2','job-2','job-2','{}',1.79497749002091145512e+09);
CREATE UNIQUE INDEX commands_by_job ON commands (job, number);
CREATE INDEX events_by_job ON events (job, seq);
COMMIT;
