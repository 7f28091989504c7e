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
INSERT INTO "agents" VALUES('node-1','node1','boot',42,'up','',1.79506420500621843338e+09,1.79506420500621843338e+09);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('state_10');
CREATE TABLE checkpoints (
	job TEXT NOT NULL, 
	step INTEGER NOT NULL, 
	generation INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	state TEXT NOT NULL, 
	world_size INTEGER NOT NULL, 
	bytes INTEGER NOT NULL, 
	place TEXT NOT NULL, 
	metrics TEXT NOT NULL, 
	"trigger" TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	author TEXT NOT NULL, 
	root TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	committed_at DOUBLE, 
	changed_at DOUBLE NOT NULL, 
	shards TEXT NOT NULL, 
	manifest TEXT NOT NULL, trainer TEXT DEFAULT '' NOT NULL, path TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (job, step, generation, attempt)
);
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
INSERT INTO "command_acks" VALUES('c4d20a394ba8430c',0,0,'','applied',2,NULL,'','0.1','0.25',1.79506420511795711518e+09);
INSERT INTO "command_acks" VALUES('c4d20a394ba8430c',0,1,'','applied',2,NULL,'','0.1','0.25',1.79506420511799979211e+09);
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
INSERT INTO "commands" VALUES('c4d20a394ba8430c',1,'job-1','knob','{"lr":{"value":0.25,"hold":false}}',NULL,'ada','a try',1.79506420510668373105e+09,'applied',0,1,2,'0.1','0.25','',1.79506420511799979211e+09);
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
INSERT INTO "devices" VALUES('node1/cpu/9','node1','cpu',0,0,'healthy','','',1.79506420501283931734e+09);
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
INSERT INTO "epochs" VALUES(1,'vm',5155,1.79506420488859963413e+09);
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
INSERT INTO "events" VALUES(1,1.79506420500627160074e+09,'','agent_up',-1,NULL,'','','{"agent":"node-1","host":"node1","pid":42}');
INSERT INTO "events" VALUES(2,1.79506420500641655918e+09,'job-1','job_started',-1,NULL,'','','{"name":"job-1","owner":"","scheduler":"","handle":"","run_id":"job-1","generation":0}');
INSERT INTO "events" VALUES(3,1.79506420500647258763e+09,'job-1','rank_up',0,NULL,'','','{"pid":1000,"node":"node1","generation":0}');
INSERT INTO "events" VALUES(4,1.7950642050065732002e+09,'job-1','rank_up',1,NULL,'','','{"pid":1001,"node":"node1","generation":0}');
INSERT INTO "events" VALUES(5,1.79506420500660610201e+09,'job-2','job_started',-1,NULL,'','','{"name":"job-2","owner":"","scheduler":"","handle":"","run_id":"job-2","generation":0}');
INSERT INTO "events" VALUES(6,1.79506420500662589078e+09,'job-2','rank_up',0,NULL,'','','{"pid":1000,"node":"node1","generation":0}');
INSERT INTO "events" VALUES(7,1.79506420510671043395e+09,'job-1','command_accepted',-1,NULL,'ada','a try','{"command":"c4d20a394ba8430c","kind":"knob","payload":{"lr":{"value":0.25,"hold":false}},"before":null,"after":null}');
INSERT INTO "events" VALUES(8,1.79506420510676598543e+09,'job-1','command_preparing',-1,NULL,'ada','a try','{"command":"c4d20a394ba8430c","kind":"knob","payload":{"lr":{"value":0.25,"hold":false}},"before":null,"after":null}');
INSERT INTO "events" VALUES(9,1.79506420511792683602e+09,'job-1','command_committed',-1,2,'ada','a try','{"command":"c4d20a394ba8430c","kind":"knob","payload":{"lr":{"value":0.25,"hold":false}},"before":null,"after":null}');
INSERT INTO "events" VALUES(10,1.79506420511800575262e+09,'job-1','command_applied',-1,2,'ada','a try','{"command":"c4d20a394ba8430c","kind":"knob","payload":{"lr":{"value":0.25,"hold":false}},"before":0.1,"after":0.25}');
INSERT INTO "events" VALUES(11,1.79506420513718938829e+09,'job-1','job_state',-1,NULL,'','ranks_ended','{"before":"RUNNING","after":"COMPLETED"}');
INSERT INTO "events" VALUES(12,1.7950642051416866779e+09,'job-1','rank_gone',0,NULL,'','ranks_ended','{"pid":1000,"node":"node1","generation":0}');
INSERT INTO "events" VALUES(13,1.79506420514367842676e+09,'job-1','rank_gone',1,NULL,'','ranks_ended','{"pid":1001,"node":"node1","generation":0}');
CREATE TABLE facts (
	name TEXT NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "facts" VALUES('drmap_version','2');
CREATE TABLE guards (
	command TEXT NOT NULL, 
	job TEXT NOT NULL, 
	words TEXT NOT NULL, 
	span INTEGER NOT NULL, 
	base DOUBLE, 
	state TEXT NOT NULL, 
	why TEXT NOT NULL, 
	PRIMARY KEY (command)
);
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
	facts TEXT NOT NULL, step INTEGER, account TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "jobs" VALUES('job-1','gpt','ada','local','local://x/job-1','COMPLETED','ranks_ended','job-1',1,0,1.79506420500637865061e+09,1.79506420500637865061e+09,1.79506420513308048245e+09,'{"world_size":2}',NULL,'');
INSERT INTO "jobs" VALUES('job-2','bert','ada','local','local://x/job-2','RUNNING','','job-2',1,0,1.79506420500658869744e+09,1.79506420500658869744e+09,NULL,'{}',NULL,'');
CREATE TABLE links (
	hash TEXT NOT NULL, 
	user TEXT NOT NULL, 
	expires_at DOUBLE NOT NULL, 
	used_at DOUBLE, 
	"key" TEXT NOT NULL, 
	PRIMARY KEY (hash)
);
CREATE TABLE placements (
	job TEXT NOT NULL, 
	node TEXT NOT NULL, 
	workers INTEGER NOT NULL, 
	cpus INTEGER NOT NULL, 
	memory_mb INTEGER NOT NULL, 
	gpus TEXT NOT NULL, 
	PRIMARY KEY (job, node)
);
CREATE TABLE quotas (
	owner TEXT NOT NULL, 
	workers INTEGER NOT NULL, 
	PRIMARY KEY (owner)
);
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
	ended_at DOUBLE, life INTEGER DEFAULT '1' NOT NULL, attempt INTEGER DEFAULT '0' NOT NULL, 
	PRIMARY KEY (job, role, rank)
);
INSERT INTO "ranks" VALUES('job-1','trainer',0,0,'job-1-trainer-0-0',2,0,'node1','node-1',1000,5,'trainer/0','["node1/cpu/0"]','api','[{"name":"lr","value":0.1,"type":"float","low":0.0,"high":1.0,"is_used":true}]','gone','ranks_ended',1.79506420500634598729e+09,1.79506420514145541194e+09,1,0);
INSERT INTO "ranks" VALUES('job-1','trainer',1,0,'job-1-trainer-1-0',2,1,'node1','node-1',1001,5,'trainer/1','["node1/cpu/1"]','api','[{"name":"lr","value":0.1,"type":"float","low":0.0,"high":1.0,"is_used":true}]','gone','ranks_ended',1.79506420500648903844e+09,1.79506420514356470111e+09,1,0);
INSERT INTO "ranks" VALUES('job-2','trainer',0,0,'job-2-trainer-0-0',1,0,'node1','node-1',1000,5,'trainer/0','["node1/cpu/9"]','api','[{"name":"lr","value":0.1,"type":"float","low":0.0,"high":1.0,"is_used":true}]','up','',1.79506420500658273693e+09,NULL,1,0);
CREATE TABLE regroupings (
	job TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	state TEXT NOT NULL, 
	record TEXT NOT NULL, 
	role TEXT NOT NULL, 
	store TEXT NOT NULL, 
	stored INTEGER NOT NULL, 
	since DOUBLE, 
	cause TEXT NOT NULL, 
	PRIMARY KEY (job)
);
CREATE TABLE runs (
	id TEXT NOT NULL, 
	job TEXT NOT NULL, 
	name TEXT NOT NULL, 
	config TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "runs" VALUES('job-1','job-1','job-1','{}',1.79506420500637865061e+09);
INSERT INTO "runs" VALUES('job-2','job-2','job-2','{}',1.79506420500658869744e+09);
CREATE TABLE submissions (
	job TEXT NOT NULL, 
	number INTEGER NOT NULL, 
	owner TEXT NOT NULL, 
	priority INTEGER NOT NULL, 
	spec TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	cwd TEXT NOT NULL, 
	python TEXT NOT NULL, 
	author TEXT NOT NULL, 
	submitted_at DOUBLE NOT NULL, 
	PRIMARY KEY (job)
);
CREATE TABLE tokens (
	id TEXT NOT NULL, 
	user TEXT NOT NULL, 
	label TEXT NOT NULL, 
	hash TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE, 
	revoked_at DOUBLE, 
	"key" TEXT NOT NULL, proof TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE users (
	name TEXT NOT NULL, 
	role TEXT NOT NULL, 
	disabled BOOLEAN NOT NULL, 
	created_at DOUBLE NOT NULL, run_as TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (name)
);
CREATE UNIQUE INDEX commands_by_job ON commands (job, number);
CREATE INDEX events_by_job ON events (job, seq);
CREATE UNIQUE INDEX submissions_by_number ON submissions (number);
CREATE INDEX submissions_by_key ON submissions (owner, "key");
CREATE UNIQUE INDEX tokens_by_hash ON tokens (hash);
CREATE INDEX checkpoints_by_state ON checkpoints (state);
CREATE INDEX jobs_by_time ON jobs (created_at, id);
COMMIT;
