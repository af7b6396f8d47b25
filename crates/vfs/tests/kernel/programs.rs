//! Programs that know nothing of it.

use std::path::Path;

use crate::mount::{has, sh, shell};

/// Real programs' sources are what this crate has.
fn sources() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))
}

#[test]
fn a_tree_is_copied_packed_and_unpacked() {
    let Some(mut mounted) = super::mounted(64 << 20) else {
        return;
    };
    let from = sources().display();
    shell(mounted.path(), &format!("cp -a {from} tree"));
    shell(
        mounted.path(),
        "ln tree/lib.rs hard; ln -s tree/lib.rs soft; mkfifo pipe",
    );
    shell(
        mounted.path(),
        "tar cf tree.tar tree hard soft pipe; mkdir out; tar xf tree.tar -C out",
    );
    mounted.again();
    shell(
        mounted.path(),
        &format!("diff -r {from} tree; diff -r {from} out/tree; diff soft hard"),
    );
    let links = shell(
        mounted.path(),
        "stat -c %h hard out/hard; readlink out/soft; stat -c %F pipe",
    );
    assert_eq!(links, "2\n2\ntree/lib.rs\nfifo\n");
    shell(
        mounted.path(),
        "rm -rf tree out hard soft pipe tree.tar; test -z \"$(ls -A)\"",
    );
}

#[test]
fn a_repository_of_git_is_sound_after_a_remount() {
    let Some(mut mounted) = super::mounted(64 << 20) else {
        return;
    };
    if !has("git") {
        return;
    }
    let from = sources().display();
    let git = "git -c user.name=a -c user.email=a@b -c commit.gpgsign=false";
    shell(
        mounted.path(),
        &format!("cp -a {from} work; cd work; git init -q; git add -A"),
    );
    shell(
        &mounted.at("work"),
        &format!("{git} commit -qm one; git mv lib.rs other.rs"),
    );
    shell(
        &mounted.at("work"),
        &format!("{git} commit -qm two; git gc -q; git checkout -q HEAD~1"),
    );
    mounted.again();
    let work = mounted.at("work");
    shell(
        &work,
        "git fsck --strict && test -z \"$(git status --porcelain)\"",
    );
    shell(
        mounted.path(),
        &format!("git clone -q work copy && diff -r {from}/files copy/files"),
    );
}

#[test]
fn a_database_of_sqlite_is_sound_in_both_modes_of_its_journal() {
    let Some(mut mounted) = super::mounted(64 << 20) else {
        return;
    };
    if !has("python3") {
        return;
    }
    let script = "
import sqlite3, sys
for mode in ('DELETE', 'WAL'):
    db = sqlite3.connect(mode + '.db')
    db.execute('PRAGMA journal_mode=' + mode)
    db.execute('CREATE TABLE t (a INTEGER PRIMARY KEY, b BLOB)')
    for round in range(20):
        with db:
            db.executemany('INSERT INTO t (b) VALUES (?)', [(b'x' * 700,)] * 50)
    with db:
        db.execute('DELETE FROM t WHERE a % 3 = 0')
    db.close()
";
    shell(mounted.path(), &format!("python3 -c \"{script}\""));
    mounted.again();
    let check = "
import sqlite3
for mode in ('DELETE', 'WAL'):
    db = sqlite3.connect(mode + '.db')
    print(db.execute('PRAGMA integrity_check').fetchone()[0], db.execute('SELECT count(*) FROM t').fetchone()[0])
";
    let said = shell(mounted.path(), &format!("python3 -c \"{check}\""));
    assert_eq!(said, "ok 667\nok 667\n");
}

#[test]
fn fio_verifies_what_it_wrote_past_the_cache_and_through_mmap() {
    let Some(mounted) = super::mounted(96 << 20) else {
        return;
    };
    if !has("fio") {
        return;
    }
    let common = "fio --name=a --size=8m --verify=crc32c --rw=randwrite --minimal";
    for how in [
        "--bs=4k --direct=1 --ioengine=libaio --iodepth=16",
        "--bs=4k --ioengine=mmap",
        "--bs=1m --direct=1 --ioengine=libaio --iodepth=4",
        "--bsrange=512-64k --ioengine=psync --fsync=16",
    ] {
        let output = sh(mounted.path(), &format!("{common} {how}"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{how}: {stderr}");
    }
}

#[test]
fn locks_keep_processes_apart() {
    let Some(mounted) = super::mounted(16 << 20) else {
        return;
    };
    if !has("flock") {
        return;
    }
    let held = "flock -x lock sh -c 'flock -n -x lock true'";
    assert!(!sh(mounted.path(), held).status.success());
    shell(mounted.path(), "flock -x lock true");
}

#[test]
fn a_directory_of_thousands_is_listed_whole_while_it_is_emptied() {
    let Some(mut mounted) = super::mounted(128 << 20) else {
        return;
    };
    shell(mounted.path(), "mkdir d; cd d; seq 5000 | xargs touch");
    assert_eq!(shell(mounted.path(), "ls d | wc -l"), "5000\n");
    mounted.again();
    assert_eq!(shell(mounted.path(), "ls -l d | wc -l"), "5001\n");
    shell(mounted.path(), "rm -r d");
}
