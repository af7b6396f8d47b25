//! Tags through the lives of their owners.

use super::*;
use crate::SealKey;
use crate::marks::MarksFiles;

const PAGES: u64 = 1 << 15;

fn sealed(byte: u8) -> Protection {
    Protection::Sealed(SealKey::new([byte; 32]))
}

struct Owner {
    marks: Marks,
    tags: Tags,
}

struct Files {
    pages: File,
    images: File,
    tags: File,
}

impl Files {
    fn marks(&self) -> MarksFiles<'_> {
        MarksFiles {
            pages: &self.pages,
            images: &self.images,
            epoch: 0,
        }
    }
}

fn owner(files: &Files, protection: &Protection) -> Result<Owner, TagsError> {
    let marks = match Marks::take_over(files.marks(), 3, PAGES) {
        Ok(marks) => marks,
        Err(_) => Marks::create(files.marks(), 3, PAGES)?,
    };
    marks.reserve_slots(0..16)?;
    let tags = Tags::in_file(&files.tags, protection, 3, PAGES, &marks)?;
    let tags = tags.expect("protected");
    Ok(Owner { marks, tags })
}

fn files() -> Files {
    let [pages, images, tags] = [(); 3].map(|()| tempfile::tempfile().unwrap());
    Files {
        pages,
        images,
        tags,
    }
}

fn write(owner: &Owner, slot: usize, page: u64, tag: Tag) {
    owner.tags.stage(slot, page, &tag);
    let bytes = [7; crate::PAGE_BYTES];
    owner.marks.begin_write(slot, page, &bytes);
}

fn end(owner: &Owner, slot: usize, page: u64, tag: Tag) {
    owner.tags.commit(slot, page, &tag);
    owner.marks.end_write(slot, page);
}

#[test]
fn the_next_owner_knows_the_old_tag_and_the_new() {
    let files = files();
    let first = owner(&files, &Protection::Checksum).unwrap();
    write(&first, 0, 5, [50, 0, 0]);
    end(&first, 0, 5, [50, 0, 0]);
    write(&first, 1, 5, [51, 0, 0]);
    write(&first, 2, 6, [60, 0, 0]);
    drop(first);
    // What they were to be is not known.
    files.images.set_len(0).unwrap();
    let second = owner(&files, &Protection::Checksum).unwrap();
    assert_eq!(second.marks.soundness(5), Soundness::Doubtful);
    assert_eq!(second.tags.load(5), [50, 0, 0]);
    let pending: Vec<Tag> = second.tags.pending(5).collect();
    assert_eq!(pending, [[51, 0, 0]]);
    assert_eq!(second.tags.pending(6).count(), 0, "it held nothing before");
    drop(second);
    let third = owner(&files, &Protection::Checksum).unwrap();
    assert_eq!(third.tags.pending(5).count(), 1, "until it is decided");
    write(&third, 0, 5, [52, 0, 0]);
    end(&third, 0, 5, [52, 0, 0]);
    assert_eq!(third.tags.pending(5).count(), 0);
    assert_eq!(third.tags.load(5), [52, 0, 0]);
}

#[test]
fn a_write_that_is_to_be_redone_keeps_its_tag_until_it_is() {
    let files = files();
    let first = owner(&files, &sealed(1)).unwrap();
    write(&first, 0, 5, [50, 0, 1]);
    end(&first, 0, 5, [50, 0, 1]);
    write(&first, 1, 5, [51, 0, 1]);
    drop(first);
    // Neither does it get lost with an owner that ends before.
    for _ in 0..2 {
        let next = owner(&files, &sealed(1)).unwrap();
        assert!(next.marks.is_unfinished(1) && !next.marks.is_unfinished(0));
        assert_eq!(next.tags.staged(1, 5), Some([51, 0, 1]));
        assert_eq!(next.tags.staged(1, 6), None);
        assert_eq!(next.tags.pending(5).count(), 0);
    }
    let last = owner(&files, &sealed(1)).unwrap();
    end(&last, 1, 5, [51, 0, 1]);
    assert_eq!(last.tags.staged(1, 5), None);
    assert_eq!(last.tags.load(5), [51, 0, 1]);
}

#[test]
fn a_tag_that_is_staged_for_no_page_of_the_volume_is_dropped() {
    let files = files();
    let first = owner(&files, &Protection::Checksum).unwrap();
    write(&first, 0, 5, [50, 0, 0]);
    end(&first, 0, 5, [50, 0, 0]);
    // So that the marks are asked at all.
    first.marks.doubt(5);
    for (slot, page) in [(1, PAGES), (2, 1 << 50), (3, u64::MAX - 1)] {
        first.tags.stage(slot, page, &[51, 0, 0]);
    }
    drop(first);
    let second = owner(&files, &Protection::Checksum).unwrap();
    assert_eq!(second.tags.load(5), [50, 0, 0]);
    for page in [PAGES, 1 << 50, u64::MAX - 1] {
        assert_eq!(second.tags.pending(page).count(), 0);
        assert!((1..4).all(|slot| second.tags.staged(slot, page).is_none()));
    }
}

#[test]
fn a_write_that_failed_leaves_both_until_one_is_whole() {
    let files = files();
    let owner = owner(&files, &Protection::Checksum).unwrap();
    write(&owner, 0, 5, [50, 0, 0]);
    end(&owner, 0, 5, [50, 0, 0]);
    for tag in [51, 52] {
        write(&owner, 3, 5, [tag, 0, 0]);
        assert!(owner.tags.fail(3));
        owner.marks.fail_write(3);
    }
    assert_eq!(owner.tags.load(5), [50, 0, 0]);
    let pending: Vec<u64> = owner.tags.pending(5).map(|tag| tag[0]).collect();
    assert_eq!(pending, [51, 52]);
    owner.tags.forget_pending(5);
    assert_eq!(owner.tags.pending(5).count(), 0);
}

#[test]
fn what_was_made_otherwise_is_refused_and_stays_as_it_was() {
    let files = files();
    let first = owner(&files, &sealed(1)).unwrap();
    write(&first, 0, 5, [1, 2, 3]);
    end(&first, 0, 5, [1, 2, 3]);
    drop(first);
    let refused = |protection| owner(&files, &protection).err();
    assert!(matches!(refused(sealed(2)), Some(TagsError::Key)));
    let other = refused(Protection::Checksum);
    assert!(matches!(other, Some(TagsError::Other { .. })));
    let marks = Marks::take_over(files.marks(), 3, PAGES).unwrap();
    let none = Tags::in_file(&files.tags, &Protection::None, 3, PAGES, &marks);
    assert!(matches!(none, Err(TagsError::Other { .. })));
    let again = owner(&files, &sealed(1)).unwrap();
    assert_eq!(again.tags.load(5), [1, 2, 3]);
}

/// A file's length, and how much of the disk it has.
fn room(file: &File) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = file.metadata().unwrap();
    (metadata.len(), metadata.blocks())
}

#[test]
fn a_file_that_is_refused_takes_no_more_of_the_disk() {
    let sums = Protection::Checksum;
    let (marked, larger) = (files(), 4 * PAGES);
    let marks = Marks::create(marked.marks(), 3, larger).unwrap();
    marks.written.insert(5);
    let pairs = [
        (&sums, &sealed(1)),
        (&sealed(1), &sums),
        (&sealed(1), &sealed(2)),
    ];
    for (made, other) in pairs {
        let files = files();
        drop(owner(&files, made).unwrap());
        let before = room(&files.tags);
        // The volume has grown since.
        let refused = Tags::in_file(&files.tags, other, 3, larger, &marks);
        assert!(refused.is_err());
        assert_eq!(room(&files.tags), before, "{made:?} as {other:?}");
        let again = Tags::in_file(&files.tags, made, 3, larger, &marks);
        assert!(again.is_ok() && room(&files.tags) > before);
    }
}

#[test]
fn checksums_stay_what_they_were_and_a_later_version_is_refused() {
    let files = files();
    let page = [7; crate::PAGE_BYTES];
    let first = owner(&files, &Protection::Checksum).unwrap();
    assert_eq!(first.tags.checksum(&page), xxh3(&page));
    write(&first, 0, 5, [1, 0, 0]);
    end(&first, 0, 5, [1, 0, 0]);
    drop(first);
    let map = Arc::new(MmapRaw::map_raw(&files.tags).unwrap());
    let magic = |bytes: &[u8; 8]| {
        let header = Words::new(&map, 0, HEADER_WORDS);
        header.as_slice()[0].store(u64::from_le_bytes(*bytes), Ordering::Release);
    };
    magic(b"cenoteT1");
    for _ in 0..2 {
        let next = owner(&files, &Protection::Checksum).unwrap();
        assert_eq!(next.tags.checksum(&page), crc64(&page));
    }
    magic(b"cenoteT3");
    let refused = owner(&files, &Protection::Checksum).err();
    assert!(matches!(refused, Some(TagsError::Version)));
    magic(b"cenoteP1");
    let refused = owner(&files, &Protection::Checksum).err();
    assert!(matches!(refused, Some(TagsError::Other { .. })));
}

#[test]
fn pages_of_an_unprotected_volume_have_no_tags_to_take_over() {
    let files = files();
    let marks = Marks::create(files.marks(), 3, PAGES).unwrap();
    assert!(
        Tags::in_file(&files.tags, &Protection::None, 3, PAGES, &marks)
            .unwrap()
            .is_none()
    );
    marks.reserve_slots(0..16).unwrap();
    marks.begin_write(0, 7, &[7; crate::PAGE_BYTES]);
    marks.end_write(0, 7);
    let refused = Tags::in_file(&files.tags, &Protection::Checksum, 3, PAGES, &marks);
    assert!(matches!(refused, Err(TagsError::Other { .. })));
}

#[test]
fn a_tag_takes_less_than_a_hundredth_of_its_page() {
    for (protection, bytes) in [(Protection::Checksum, 8), (sealed(1), 24)] {
        let tags = Tags::anonymous(&protection, 3, PAGES).unwrap().unwrap();
        assert_eq!(tags.bytes_per_page(), bytes);
        assert!(bytes * 100 < crate::PAGE_BYTES);
    }
}

/// A page that this owner has sealed, and what it was.
fn seal(owner: &Owner, page: u64, byte: u8) {
    let sealer = owner.tags.sealer.as_ref().unwrap();
    let mut sealed = [0; crate::PAGE_BYTES];
    let plain = [byte; crate::PAGE_BYTES];
    let tag = sealer.seal(page, sealer.take_numbers(), &plain, &mut sealed);
    write(owner, 0, page, tag);
    end(owner, 0, page, tag);
}

/// Whether the page's seal is of an owner whose key is known.
fn opens(owner: &Owner, page: u64, byte: u8) -> bool {
    let sealer = owner.tags.sealer.as_ref().unwrap();
    let tag = owner.tags.load(page);
    // Encrypting is its own inverse in this mode: the bytes are found by their number.
    let salt = owner.tags.owners.all().nth(owner_of(&tag)).flatten();
    let Some(salt) = salt else { return false };
    let Protection::Sealed(key) = sealed(1) else {
        unreachable!("it is sealed")
    };
    let again = Sealer::new(&key, 3, [], (owner_of(&tag), salt)).unwrap();
    let number = tag[0] & ((1 << 48) - 1);
    let mut bytes = [0; crate::PAGE_BYTES];
    let resealed = again.seal(page, number, &[byte; crate::PAGE_BYTES], &mut bytes);
    let mut plain = [0; crate::PAGE_BYTES];
    resealed == tag && sealer.open(page, &tag, &bytes, &mut plain) && plain == [byte; 4096]
}

#[test]
fn an_owner_that_never_came_in_takes_no_place() {
    let files = files();
    let first = owner(&files, &sealed(1)).unwrap();
    first.tags.enter_owner();
    seal(&first, 5, 50);
    drop(first);
    // It could not reach its hosts, again and again.
    for _ in 0..10 {
        drop(owner(&files, &sealed(1)).unwrap());
    }
    let next = owner(&files, &sealed(1)).unwrap();
    assert_eq!(next.tags.owners.places(), 1);
    assert!(opens(&next, 5, 50));
}

#[test]
fn a_volume_is_opened_more_often_than_it_has_places_for_owners() {
    let files = files();
    let marks = Marks::create(files.marks(), 3, PAGES).unwrap();
    let mut written = Vec::new();
    for number in 0..5000_u64 {
        let tags = Tags::in_file(&files.tags, &sealed(1), 3, PAGES, &marks).unwrap();
        let tags = tags.expect("sealed");
        tags.enter_owner();
        // Some write a page that stays, the others one that the next writes again.
        let (page, byte) = (number.is_multiple_of(500), number as u8);
        let page = if page { 1 + number / 500 } else { 0 };
        let marks = Marks::take_over(files.marks(), 3, PAGES).unwrap();
        let owner = Owner { marks, tags };
        seal(&owner, page, byte);
        written.retain(|&(known, _)| known != page);
        written.push((page, byte));
    }
    let last = owner(&files, &sealed(1)).unwrap();
    assert_eq!(written.len(), 11);
    for (page, byte) in written {
        assert!(opens(&last, page, byte), "page {page}");
    }
}

/// The only thing that an owner left is a write that it did not end, and all places are taken by others: what
/// the page was to be is redone, under the seal that it was given.
#[test]
fn a_write_that_is_to_be_redone_keeps_the_key_that_it_was_sealed_with() {
    let files = files();
    drop(owner(&files, &sealed(1)).unwrap());
    let writer = owner(&files, &sealed(1)).unwrap();
    writer.tags.enter_owner();
    let (page, plain) = (5, [8; crate::PAGE_BYTES]);
    // What it is written over is another owner's.
    write(&writer, 3, page, [4000 << 48, 0, 0]);
    end(&writer, 3, page, [4000 << 48, 0, 0]);
    let sealer = writer.tags.sealer.as_ref().unwrap();
    let mut bytes = [0; crate::PAGE_BYTES];
    let tag = sealer.seal(page, sealer.take_numbers(), &plain, &mut bytes);
    write(&writer, 2, page, tag);
    for place in 1..OWNERS_MAX {
        writer.tags.owners.set(place, [place as u64, 9]);
    }
    drop(writer);
    let next = owner(&files, &sealed(1)).unwrap();
    let owners = next.tags.owners.all().flatten();
    assert_eq!(owners.count(), 2, "the others' places are free again");
    assert!(next.marks.is_unfinished(2));
    let staged = next.tags.staged(2, page).unwrap();
    let mut found = [0; crate::PAGE_BYTES];
    let sealer = next.tags.sealer.as_ref().unwrap();
    assert!(sealer.open(page, &staged, &bytes, &mut found) && found == plain);
}

#[test]
fn an_owner_with_a_page_that_may_be_read_keeps_its_place() {
    let files = files();
    let first = owner(&files, &sealed(1)).unwrap();
    first.tags.enter_owner();
    // Of a page, of a write under way, and of one that ended unknown.
    for (place, page) in [(1, 10), (2, 11), (3, 12)] {
        first.tags.owners.set(place, [place as u64, 9]);
        let tag = [(place as u64) << 48, 0, 0];
        write(&first, place, page, tag);
        match place {
            1 => end(&first, place, page, tag),
            2 => {}
            _ => assert!(first.tags.fail(place)),
        }
    }
    for place in 4..OWNERS_MAX {
        first.tags.owners.set(place, [place as u64, 9]);
    }
    drop(first);
    let next = owner(&files, &sealed(1)).unwrap();
    let kept: Vec<usize> = (0..)
        .zip(next.tags.owners.all())
        .filter_map(|(place, salt)| salt.map(|_| place))
        .collect();
    assert_eq!(kept, [1, 2, 3]);
}
