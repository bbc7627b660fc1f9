-- A database of the version without fencing tokens: the machine is installed, and a reinstall with debian-13 is ordered.
CREATE TABLE IF NOT EXISTS machines (
    id TEXT PRIMARY KEY, macs TEXT NOT NULL DEFAULT '[]', name TEXT NOT NULL DEFAULT '', registered TEXT,
    last_seen TEXT, last_event TEXT) STRICT;
CREATE TABLE IF NOT EXISTS boots (
    hash BLOB PRIMARY KEY, machine TEXT NOT NULL, created TEXT NOT NULL, asked_by TEXT NOT NULL,
    while_heard INTEGER NOT NULL, address TEXT, begun INTEGER NOT NULL DEFAULT 0, over INTEGER) STRICT;
CREATE INDEX IF NOT EXISTS boots_of_machine ON boots (machine);
CREATE TABLE IF NOT EXISTS allocations (
    machine TEXT NOT NULL, id TEXT NOT NULL, created TEXT NOT NULL, succeeded INTEGER NOT NULL DEFAULT 0,
    report TEXT, PRIMARY KEY (machine, id)) STRICT;
CREATE INDEX IF NOT EXISTS allocations_by_id ON allocations (id);
CREATE TABLE IF NOT EXISTS layouts (
    machine TEXT NOT NULL, allocation TEXT NOT NULL, layout TEXT NOT NULL, PRIMARY KEY (machine, allocation)) STRICT;
CREATE TABLE IF NOT EXISTS orders (
    machine TEXT NOT NULL, allocation TEXT NOT NULL, id TEXT NOT NULL, image TEXT NOT NULL, created TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0, begun INTEGER NOT NULL DEFAULT 0, without_marker INTEGER NOT NULL,
    given_up INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (machine, allocation)) STRICT;
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY, machine TEXT NOT NULL, time TEXT NOT NULL, event TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS events_of_machine ON events (machine, id);
CREATE TABLE IF NOT EXISTS log (
    id INTEGER PRIMARY KEY, machine TEXT NOT NULL, boot BLOB NOT NULL, start INTEGER NOT NULL, bytes INTEGER NOT NULL,
    time TEXT NOT NULL, text TEXT NOT NULL, UNIQUE (machine, boot, start)) STRICT;
CREATE TABLE IF NOT EXISTS digests (
    path TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime TEXT NOT NULL, digest TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS identity (
    one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL, transactions INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS former (former TEXT PRIMARY KEY, machine TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS moves (
    id TEXT PRIMARY KEY, a TEXT NOT NULL, b TEXT NOT NULL, allocation TEXT NOT NULL, state TEXT NOT NULL,
    live INTEGER NOT NULL, created TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS moves_live ON moves (live);
CREATE TABLE IF NOT EXISTS barred (
    machine TEXT NOT NULL, allocation TEXT NOT NULL, move TEXT NOT NULL, PRIMARY KEY (machine, allocation)) STRICT;
ALTER TABLE allocations ADD COLUMN image TEXT;
ALTER TABLE allocations ADD COLUMN layout TEXT;
ALTER TABLE allocations ADD COLUMN marker TEXT;
ALTER TABLE allocations ADD COLUMN outcome TEXT;
ALTER TABLE allocations ADD COLUMN begun TEXT;
ALTER TABLE allocations ADD COLUMN adopted TEXT;
ALTER TABLE allocations ADD COLUMN waits TEXT;
ALTER TABLE allocations ADD COLUMN volumes TEXT;
ALTER TABLE layouts ADD COLUMN document TEXT;
ALTER TABLE layouts ADD COLUMN image TEXT;
ALTER TABLE layouts ADD COLUMN for_order TEXT;
ALTER TABLE orders ADD COLUMN disks TEXT;
ALTER TABLE orders ADD COLUMN words TEXT;
ALTER TABLE orders ADD COLUMN handed TEXT;
ALTER TABLE machines ADD COLUMN stranger TEXT;
ALTER TABLE machines ADD COLUMN registered_at TEXT;
ALTER TABLE machines ADD COLUMN begun_since TEXT;
ALTER TABLE moves ADD COLUMN document TEXT;

INSERT INTO identity (one, id, transactions) VALUES (1, '6f9619ff-8b86-4d01-b42d-00cf4fc964ff', 9);
INSERT INTO machines (id, macs, name, last_seen) VALUES ('4c4c4544-0051-3010-8052-b4c04f4d0001', '["52:54:00:00:00:01"]', 'one', '2026-10-02T00:00:00Z');
INSERT INTO allocations (machine, id, created, succeeded, image, layout, marker)
    VALUES ('4c4c4544-0051-3010-8052-b4c04f4d0001', 'a1', '2026-10-01T00:00:00Z', 1, 'debian-12',
        '{"id":"default","filesystems":[{"path":"/","device":"/dev/sda1","format":"ext4","label":"root","mountoptions":[],"createoptions":[]}],"disks":[{"device":"/dev/sda","wipeonreinstall":true,"partitions":[{"number":1,"label":"root","size":0,"gpttype":"8300"}]}],"raid":[],"volumegroups":[],"logicalvolumes":[],"constraints":{"sizes":[],"images":{}}}',
        '{"machine":"4c4c4544-0051-3010-8052-b4c04f4d0001","allocation":"a1","order":"","image":"debian-12","layout":"default","time":"2026-10-01T00:00:00Z","disks":[]}');
INSERT INTO layouts (machine, allocation, layout, document, image, for_order)
    VALUES ('4c4c4544-0051-3010-8052-b4c04f4d0001', 'a1', 'default',
        '{"id":"default","filesystems":[{"path":"/","device":"/dev/sda1","format":"ext4","label":"root","mountoptions":[],"createoptions":[]}],"disks":[{"device":"/dev/sda","wipeonreinstall":true,"partitions":[{"number":1,"label":"root","size":0,"gpttype":"8300"}]}],"raid":[],"volumegroups":[],"logicalvolumes":[],"constraints":{"sizes":[],"images":{}}}',
        'debian-12', '');
INSERT INTO orders (machine, allocation, id, image, created, attempts, begun, without_marker, given_up, disks, words)
    VALUES ('4c4c4544-0051-3010-8052-b4c04f4d0001', 'a1', '7f9619ff-8b86-4d01-b42d-00cf4fc964ff', 'debian-13', '2026-10-02T00:00:00Z', 0, 0, 0, 0, '[]',
        '{"without_marker":false,"change_promise":false,"give_up":[]}');
