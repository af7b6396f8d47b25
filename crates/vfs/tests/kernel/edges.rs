//! What reviews found elsewhere: odd names, far offsets, a full medium, one that fails, old times.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use crate::mount::{sh, shell};

fn code<T>(outcome: io::Result<T>) -> Option<i32> {
    outcome.err().and_then(|error| error.raw_os_error())
}

fn name(bytes: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

#[test]
fn names_of_any_bytes_up_to_255_of_them() {
    let Some(mut mounted) = super::mounted(16 << 20) else {
        return;
    };
    let longest = [b'n'; 255];
    let odd: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
    for bytes in [&longest[..], &odd, b"\xFF\xFE", b" ", b"\n", b"-rf", b"..."] {
        fs::write(mounted.at(name(bytes)), bytes).expect("a file");
    }
    mounted.again();
    for bytes in [&longest[..], &odd, b"\xFF\xFE", b" ", b"\n", b"-rf", b"..."] {
        assert_eq!(fs::read(mounted.at(name(bytes))).expect("a file"), bytes);
    }
    assert_eq!(fs::read_dir(mounted.path()).expect("a folder").count(), 7);
    let too_long = mounted.at(name(&[b'n'; 256]));
    assert_eq!(code(File::create(&too_long)), Some(libc::ENAMETOOLONG));
    assert_eq!(code(fs::metadata(&too_long)), Some(libc::ENAMETOOLONG));
    let target = "t".repeat(4095);
    std::os::unix::fs::symlink(&target, mounted.at("link")).expect("a link");
    assert_eq!(
        fs::read_link(mounted.at("link")).expect("a link"),
        Path::new(&target)
    );
}

#[test]
fn offsets_up_to_the_last_that_a_file_may_have() {
    let Some(mounted) = super::mounted(16 << 20) else {
        return;
    };
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mounted.at("far"));
    let mut file = file.expect("a file");
    let last = (1_u64 << 63) - 4096;
    file.set_len(last).expect("a size");
    file.write_all_at(b"end", last - 3).expect("the last bytes");
    file.sync_all().expect("synced");
    assert_eq!(file.metadata().expect("metadata").len(), last);
    assert!(file.metadata().expect("metadata").blocks() <= 8);
    let mut found = [9; 3];
    file.read_exact_at(&mut found, last - 3)
        .expect("the last bytes");
    assert_eq!(&found, b"end");
    file.read_exact_at(&mut found, last / 2).expect("a hole");
    assert_eq!(found, [0; 3]);
    assert_eq!(code(file.set_len(last + 1)), Some(libc::EFBIG));
    let beyond = file
        .write_all_at(b"x", i64::MAX as u64 - 1)
        .and_then(|()| file.sync_all());
    assert!(matches!(code(beyond), Some(libc::EFBIG | libc::EINVAL)));
    file.set_len(5).expect("a size");
    file.seek(SeekFrom::Start(0)).expect("a place");
    let mut all = Vec::new();
    file.read_to_end(&mut all).expect("a read");
    assert_eq!(all, [0; 5]);
}

#[test]
fn a_full_medium_takes_deletions_and_then_files_again() {
    let Some(mut mounted) = super::mounted(8 << 20) else {
        return;
    };
    for round in 0..3 {
        let filled = sh(mounted.path(), "dd if=/dev/zero of=big bs=64k oflag=direct");
        let said = String::from_utf8_lossy(&filled.stderr).into_owned();
        assert!(said.contains("No space left"), "{round}: {said}");
        let small = fs::write(mounted.at("small"), [1; 100_000])
            .and_then(|()| File::open(mounted.at("small"))?.sync_all());
        assert!(matches!(code(small), Some(libc::ENOSPC)), "{round}");
        // A sync tells of writes that found no room before.
        shell(mounted.path(), "rm -f big small; sync -f . || true");
        shell(
            mounted.path(),
            "dd if=/dev/urandom of=again bs=64k count=60 oflag=direct; rm again",
        );
        mounted.again();
    }
    // The same of metadata: small files until there is no room.
    let mut made = 0;
    let refused = loop {
        match File::create(mounted.at(format!("f{made}"))) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC), "after {made}");
    assert!(made > 300, "{made}");
    mounted.again();
    assert_eq!(
        fs::read_dir(mounted.path()).expect("a folder").count(),
        made
    );
    for file in 0..made {
        fs::remove_file(mounted.at(format!("f{file}"))).expect("a deletion");
    }
    mounted.again();
    File::create(mounted.at("one more")).expect("room again");
}

#[test]
fn memory_of_deleted_files_goes_back() {
    let Some(mut mounted) = super::mounted(32 << 20) else {
        return;
    };
    shell(
        mounted.path(),
        "dd if=/dev/urandom of=big bs=1M count=16; sync -f .",
    );
    assert!(mounted.held_bytes() > 16 << 20);
    shell(mounted.path(), "rm big");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let held = mounted.held_bytes();
        if held < 4 << 20 {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{held}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn a_medium_that_fails_is_an_error_and_never_other_bytes() {
    let Some(mut mounted) = super::mounted(16 << 20) else {
        return;
    };
    fs::write(mounted.at("kept"), b"kept").expect("a file");
    File::open(mounted.at("kept"))
        .expect("a file")
        .sync_all()
        .expect("synced");
    mounted.fail(true);
    let lost = fs::write(mounted.at("lost"), [7; 9000])
        .and_then(|()| File::open(mounted.at("lost"))?.sync_all());
    assert_eq!(code(lost), Some(libc::EIO));
    let folder = File::open(mounted.path()).expect("a folder");
    assert_eq!(code(folder.sync_all()), Some(libc::EIO));
    drop(folder);
    assert_eq!(fs::read(mounted.at("kept")).expect("a read"), b"kept");
    mounted.fail(false);
    mounted.again_after_failure();
    assert_eq!(fs::read(mounted.at("kept")).expect("a read"), b"kept");
    fs::write(mounted.at("more"), b"more").expect("a file");
}

#[test]
fn a_medium_that_answers_again_is_used_again_without_another_mount() {
    let Some(mut mounted) = super::mounted(16 << 20) else {
        return;
    };
    let folder = mounted.path().to_owned();
    let synced = |name: &str| {
        let path = folder.join(name);
        fs::write(&path, name).and_then(|()| File::open(&path)?.sync_all())
    };
    synced("kept").expect("synced");
    fs::write(mounted.at("unsynced"), b"later").expect("a file");
    mounted.fail(true);
    let refused = File::open(mounted.at("unsynced")).and_then(|file| file.sync_all());
    assert_eq!(code(refused), Some(libc::EIO));
    // Until the next commit nobody knows.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let mut made = 0;
    let error = loop {
        match File::create(mounted.at(format!("made{made}"))) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
        assert!(std::time::Instant::now() < deadline, "nobody notices");
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    mounted.fail(false);
    while let Err(error) = synced("new") {
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        assert!(std::time::Instant::now() < deadline, "it stays refused");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // As after a crash, in which the kernel's cache is all that goes.
    mounted.again();
    assert_eq!(fs::read(mounted.at("kept")).expect("a file"), b"kept");
    assert_eq!(fs::read(mounted.at("new")).expect("a file"), b"new");
    assert!(fs::metadata(mounted.at("unsynced")).is_ok());
    for number in 0..=made {
        let is_there = fs::metadata(mounted.at(format!("made{number}"))).is_ok();
        assert_eq!(is_there, number < made, "{number}");
    }
}

#[test]
fn what_is_open_stays_though_its_name_goes() {
    let Some(mounted) = super::mounted(16 << 20) else {
        return;
    };
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mounted.at("gone"));
    let file = file.expect("a file");
    file.write_all_at(&[3; 10_000], 0).expect("a write");
    fs::remove_file(mounted.at("gone")).expect("a deletion");
    file.sync_all().expect("synced");
    assert_eq!(file.metadata().expect("metadata").nlink(), 0);
    file.write_all_at(&[4; 10_000], 10_000).expect("a write");
    let mut found = vec![0; 20_000];
    file.read_exact_at(&mut found, 0).expect("a read");
    assert_eq!(found, [[3; 10_000], [4; 10_000]].concat());
    fs::create_dir(mounted.at("folder")).expect("a folder");
    let folder = File::open(mounted.at("folder")).expect("a folder");
    fs::remove_dir(mounted.at("folder")).expect("a deletion");
    assert!(folder.metadata().expect("metadata").is_dir());
}

#[test]
fn renames_by_their_flags() {
    let Some(mounted) = super::mounted(16 << 20) else {
        return;
    };
    let rename = |from: &str, to: &str, flags: u32| {
        let path = |name: &str| {
            std::ffi::CString::new(mounted.at(name).as_os_str().as_bytes()).expect("a path")
        };
        let (from, to) = (path(from), path(to));
        // SAFETY: both are live C strings for the call.
        let done = unsafe {
            libc::renameat2(
                libc::AT_FDCWD,
                from.as_ptr(),
                libc::AT_FDCWD,
                to.as_ptr(),
                flags,
            )
        };
        if done == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    };
    fs::write(mounted.at("a"), b"a").expect("a file");
    fs::write(mounted.at("b"), b"b").expect("a file");
    assert_eq!(
        code(rename("a", "b", libc::RENAME_NOREPLACE)),
        Some(libc::EEXIST)
    );
    rename("a", "b", libc::RENAME_EXCHANGE).expect("an exchange");
    assert_eq!(fs::read(mounted.at("a")).expect("a file"), b"b");
    assert_eq!(
        code(rename("a", "c", libc::RENAME_EXCHANGE)),
        Some(libc::ENOENT)
    );
    rename("a", "c", libc::RENAME_NOREPLACE).expect("a rename");
    assert_eq!(
        code(rename("c", "d", libc::RENAME_WHITEOUT)),
        Some(libc::EINVAL)
    );
    fs::create_dir_all(mounted.at("x/y")).expect("folders");
    assert_eq!(code(rename("x", "x/y/z", 0)), Some(libc::EINVAL));
    rename("x/y", "c", libc::RENAME_EXCHANGE).expect("an exchange of a file and a folder");
    assert_eq!(fs::metadata(mounted.at("x")).expect("a folder").nlink(), 2);
    assert!(fs::metadata(mounted.at("c")).expect("a folder").is_dir());
}

#[test]
fn holes_space_set_aside_and_blocks_counted() {
    let Some(mut mounted) = super::mounted(16 << 20) else {
        return;
    };
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mounted.at("sparse"));
    let file = file.expect("a file");
    let fallocate = |mode: i32, offset: i64, len: i64| {
        // SAFETY: the descriptor is open for the call.
        match unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    file.write_all_at(&[1; 4096 * 4], 1 << 20).expect("a write");
    fallocate(0, 2 << 20, 1 << 20).expect("space");
    fallocate(
        libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
        (1 << 20) + 4096,
        4096,
    )
    .expect("a hole");
    let collapse = fallocate(libc::FALLOC_FL_COLLAPSE_RANGE, 0, 4096);
    assert_eq!(code(collapse), Some(libc::EOPNOTSUPP));
    assert_eq!(code(fallocate(0, 0, 1 << 40)), Some(libc::ENOSPC));
    file.sync_all().expect("synced");
    let metadata = file.metadata().expect("metadata");
    assert_eq!(metadata.len(), 3 << 20);
    assert_eq!(metadata.blocks(), (3 + 256) * 8);
    drop(file);
    mounted.again();
    let file = File::open(mounted.at("sparse")).expect("a file");
    let seek = |offset: i64, whence: i32| {
        // SAFETY: the descriptor is open for the call.
        unsafe { libc::lseek(file.as_raw_fd(), offset, whence) }
    };
    assert_eq!(seek(0, libc::SEEK_DATA), 1 << 20);
    assert_eq!(seek(1 << 20, libc::SEEK_HOLE), (1 << 20) + 4096);
    assert_eq!(seek((1 << 20) + 4096, libc::SEEK_DATA), (1 << 20) + 8192);
    assert_eq!(seek(2 << 20, libc::SEEK_DATA), -1);
    let mut found = vec![9; 1 << 20];
    file.read_exact_at(&mut found, 2 << 20).expect("a read");
    assert!(found.iter().all(|byte| *byte == 0));
    // What is still in the kernel's cache is no hole.
    shell(
        mounted.path(),
        "printf 1234 > new; cp --sparse=auto new copy; cmp new copy",
    );
    // Nor is what a program that writes has not synced, beyond the size that we know.
    shell(
        mounted.path(),
        "exec 3> open; printf 1234 >&3; cp --sparse=auto open copy2; cmp open copy2; \
         dd if=/dev/urandom bs=64k count=3 status=none >&3; cp --sparse=auto open copy3; \
         cmp open copy3",
    );
}

#[test]
fn permissions_owners_times_and_attributes() {
    let Some(mut mounted) = super::mounted(16 << 20) else {
        return;
    };
    fs::write(mounted.at("a"), b"x").expect("a file");
    shell(
        mounted.path(),
        "chown 1000:1001 a; chmod 4751 a; touch -d '1965-03-04 05:06:07.25' a",
    );
    let before = fs::metadata(mounted.at("a")).expect("metadata");
    mounted.again();
    let after = fs::metadata(mounted.at("a")).expect("metadata");
    assert_eq!((after.uid(), after.gid()), (1000, 1001));
    assert_eq!(after.permissions().mode() & 0o7777, 0o4751);
    assert_eq!(
        (after.mtime(), after.mtime_nsec()),
        (before.mtime(), before.mtime_nsec())
    );
    assert_eq!((after.mtime() < 0, after.mtime_nsec()), (true, 250_000_000));
    // As somebody else: the kernel decides by owner and mode.
    shell(
        mounted.path(),
        "chmod 755 .; chmod 600 a; mkdir sticky; chmod 1777 sticky; touch sticky/f",
    );
    let other = "setpriv --reuid 2000 --regid 2000 --clear-groups";
    assert!(
        !sh(mounted.path(), &format!("{other} cat a"))
            .status
            .success()
    );
    assert!(
        !sh(mounted.path(), &format!("{other} rm -f sticky/f"))
            .status
            .success()
    );
    shell(
        mounted.path(),
        &format!("{other} sh -c 'echo b > sticky/b'"),
    );
    assert_eq!(
        shell(mounted.path(), "stat -c '%u %g' sticky/b"),
        "2000 2000\n"
    );
    // A write by one who may not takes the right to run as the owner away.
    shell(mounted.path(), "touch s; chmod 6777 s");
    shell(mounted.path(), &format!("{other} sh -c 'echo x >> s'"));
    assert_eq!(shell(mounted.path(), "stat -c %a s"), "777\n");
    // And so does space that is set aside or freed, and a copy in here.
    let copy = "python3 -c \"import os; os.setgroups([]); os.setgid(2000); os.setuid(2000); \
                os.copy_file_range(os.open('s', 0), os.open('t', os.O_RDWR), 2)\"";
    let set_aside = format!("{other} fallocate -l 4096 t");
    let punch = format!("{other} fallocate -p -l 4096 t");
    for change in [&*set_aside, &punch, copy] {
        shell(mounted.path(), "echo yy > t; chmod 6777 t");
        shell(mounted.path(), change);
        assert_eq!(shell(mounted.path(), "stat -c %a t"), "777\n", "{change}");
    }
    let script = "
import os
os.setxattr('a', 'user.k', b'v' * 1000)
os.setxattr('a', 'user.l', b'')
try:
    os.setxattr('a', 'user.k', b'w', os.XATTR_CREATE)
    print('created twice')
except FileExistsError:
    pass
print(sorted(os.listxattr('a')), len(os.getxattr('a', 'user.k')))
os.removexattr('a', 'user.l')
print(os.listxattr('a'))
";
    let said = shell(mounted.path(), &format!("python3 -c \"{script}\""));
    assert_eq!(said, "['user.k', 'user.l'] 1000\n['user.k']\n");
}

#[test]
fn a_write_that_appends_goes_on_where_the_file_ended() {
    let Some(mut mounted) = super::mounted(16 << 20) else {
        return;
    };
    for _ in 0..3 {
        let file = File::options()
            .append(true)
            .create(true)
            .open(mounted.at("log"));
        let mut file = file.expect("a file");
        file.write_all(&[b'l'; 1500]).expect("a write");
        file.sync_all().expect("synced");
        drop(file);
        mounted.again();
    }
    assert_eq!(fs::read(mounted.at("log")).expect("a file"), [b'l'; 4500]);
}
