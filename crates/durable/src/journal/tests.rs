use super::*;

const MAGIC: &[u8] = b"tests";

fn journal(batches: &[&[u8]]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    batches.iter().for_each(|one| bytes.extend(batch(one)));
    bytes
}

/// The records of each whole batch, or where the damage is.
fn read(bytes: &[u8]) -> Result<Vec<Vec<u8>>, usize> {
    let mut read = Vec::new();
    let end = batches(bytes, MAGIC, |records| {
        read.push(records.to_vec());
        Ok(())
    });
    match end {
        Ok(_) => Ok(read),
        Err(JournalError::Damaged { at, .. }) => Err(at),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_frame_is_the_length_its_checksum_and_that_of_the_records() {
    // CRC-32C of its check value, and of the length that it has.
    let bytes = batch(b"123456789");
    assert_eq!(bytes[..4], [9, 0, 0, 0]);
    assert_eq!(bytes[8..12], 0xe306_9283_u32.to_le_bytes());
    assert_eq!(&bytes[12..], b"123456789");
}

#[test]
fn a_journal_that_is_cut_off_never_got_its_last_batch() {
    let bytes = journal(&[b"one", b"two"]);
    let first = journal(&[b"one"]).len();
    assert_eq!(read(b""), Ok(vec![]));
    assert_eq!(read(&bytes[..first - 1]), Err(MAGIC.len()));
    for end in first..bytes.len() {
        assert_eq!(read(&bytes[..end]), Ok(vec![b"one".to_vec()]));
    }
    assert_eq!(read(&bytes), Ok(vec![b"one".to_vec(), b"two".to_vec()]));
}

#[test]
fn damage_with_a_batch_behind_it_is_told() {
    let first = journal(&[b"one"]).len();
    let mut bytes = journal(&[b"one", b"two", b"three"]);
    bytes[first + FRAME_BYTES] ^= 1;
    assert_eq!(read(&bytes), Err(first));
    assert_eq!(read(b"others"), Err(0));
}

#[test]
fn a_last_batch_that_is_damaged_is_not_one_that_was_cut_off() {
    let first = journal(&[b"one"]).len();
    let bytes = journal(&[b"one", b"two"]);
    for end in first..bytes.len() {
        assert!(is_cut_off(&bytes[..end], first), "{end} bytes");
    }
    assert!(
        is_cut_off(&bytes, bytes.len()),
        "nothing is behind the last"
    );
    for bit in first * 8..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        // It is read as before: what a crash of the machine left is not known here.
        assert_eq!(read(&bytes), Ok(vec![b"one".to_vec()]), "bit {bit}");
        assert!(!is_cut_off(&bytes, first), "bit {bit}");
    }
}

/// Of what was written, the first bytes survive a crash.
#[derive(Default)]
struct Disk {
    written: Vec<u8>,
    synced_bytes: usize,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.written.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Synced for Disk {
    fn sync(&mut self) -> io::Result<()> {
        self.synced_bytes = self.written.len();
        Ok(())
    }
}

#[test]
fn what_was_appended_survives_a_crash() {
    let mut disk = Disk::default();
    append_to(&mut disk, b"one batch").unwrap();
    assert_eq!(&disk.written[..disk.synced_bytes], b"one batch");
}

#[test]
fn nothing_is_appended_to_the_file_that_another_process_put_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let [mut first, mut second] = [JournalFile::new(&path), JournalFile::new(&path)];
    assert_eq!(first.read().unwrap(), b"");
    first.replace(b"first").unwrap();
    first.append(b", more").unwrap();
    assert_eq!(second.read().unwrap(), b"first, more");
    second.replace(b"second").unwrap();
    assert!(Superseded::is_in(&first.append(b", late").unwrap_err()));
    assert_eq!(first.read().unwrap(), b"second");
}

#[test]
fn nothing_is_put_in_place_of_what_another_process_put_there_since_it_was_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let [mut first, mut second] = [JournalFile::new(&path), JournalFile::new(&path)];
    for bytes in [&b"second"[..], b"second again"] {
        first.read().unwrap();
        second.replace(bytes).unwrap();
        let error = first.replace(b"first").unwrap_err();
        assert!(Superseded::is_in(&error), "{error}");
        assert_eq!(second.read().unwrap(), bytes);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    // What it appended to, or nobody has any more, it may replace.
    first.read().unwrap();
    first.append(b", more").unwrap();
    first.replace(b"first").unwrap();
    first.read().unwrap();
    std::fs::remove_file(&path).unwrap();
    first.replace(b"first again").unwrap();
    assert_eq!(first.read().unwrap(), b"first again");
}

#[test]
fn a_file_that_was_emptied_is_no_journal_that_begins() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let mut log = JournalFile::new(&path);
    assert_eq!(log.read().unwrap(), b"");
    log.replace(&journal(&[b"one"])).unwrap();
    assert_eq!(JournalFile::new(&path).read().unwrap(), journal(&[b"one"]));
    File::create(&path).unwrap();
    for _ in 0..2 {
        let emptied = JournalFile::new(&path).read().unwrap_err();
        assert_eq!(emptied.kind(), ErrorKind::InvalidData);
    }
    // Who knows what it said writes that again.
    assert_eq!(log.read().unwrap(), b"");
    log.replace(&journal(&[b"one"])).unwrap();
    assert_eq!(JournalFile::new(&path).read().unwrap(), journal(&[b"one"]));
}
