//! Texts, bytes and lists in their bounds, and fields that later versions added.

use std::marker::PhantomData;

use crate::reader::SHORT;
use crate::{Field, Layout, Malformed, Plain, Reader, Taken, Writer};

/// A number of bytes or items, as it stands before them.
pub trait Count: for<'a> Field<'a> + TryFrom<usize> + TryInto<usize> {}

impl Count for u8 {}
impl Count for u16 {}
impl Count for u32 {}

#[inline]
fn put_count<C: Count>(count: usize, out: &mut Writer<'_>) {
    let Ok(count) = C::try_from(count) else {
        panic!("{count} of something that is counted in fewer bits");
    };
    count.put(out);
}

#[inline]
fn take_count<C: Count>(input: &mut Reader<'_>) -> Taken<usize> {
    // More than can be addressed is more than there is.
    input.take::<C>()?.try_into().map_err(|_| SHORT)
}

/// A [`String`] of at most `MOST` bytes: their number, then UTF-8.
#[derive(Clone, Copy, Debug)]
pub struct Text<C, const MOST: usize>(PhantomData<C>);

impl<'a, C: Count, const MOST: usize> Layout<'a, String> for Text<C, MOST> {
    fn put(value: &String, out: &mut Writer<'_>) {
        let len = value.len();
        out.check(len, 0, MOST);
        put_count::<C>(len, out);
        out.bytes(value.as_bytes());
    }

    fn take(input: &mut Reader<'a>) -> Taken<String> {
        let len = take_count::<C>(input)?;
        if len > MOST {
            return Err(Malformed("text is too long"));
        }
        let text = std::str::from_utf8(input.bytes(len)?);
        text.map(str::to_owned)
            .map_err(|_| Malformed("text is not UTF-8"))
    }
}

/// At most `MOST` bytes, borrowed or in a vector: their number, then they.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<C, const MOST: usize>(PhantomData<C>);

impl<'a, C: Count, const MOST: usize> Layout<'a, &'a [u8]> for Bytes<C, MOST> {
    #[inline]
    fn put(value: &&'a [u8], out: &mut Writer<'_>) {
        let len = value.len();
        out.check(len, 0, MOST);
        put_count::<C>(len, out);
        out.bytes(value);
    }

    #[inline]
    fn take(input: &mut Reader<'a>) -> Taken<&'a [u8]> {
        let len = take_count::<C>(input)?;
        if len > MOST {
            return Err(LONG);
        }
        input.bytes(len)
    }
}

impl<'a, C: Count, const MOST: usize> Layout<'a, Vec<u8>> for Bytes<C, MOST> {
    fn put(value: &Vec<u8>, out: &mut Writer<'_>) {
        <Self as Layout<'_, &[u8]>>::put(&&value[..], out);
    }

    fn take(input: &mut Reader<'a>) -> Taken<Vec<u8>> {
        input.take_as::<Self, &[u8]>().map(<[u8]>::to_vec)
    }
}

/// All bytes up to the message's end, at most `MOST`; borrowed or in a vector.
#[derive(Clone, Copy, Debug)]
pub struct Rest<const MOST: usize>;

impl<'a, const MOST: usize> Layout<'a, &'a [u8]> for Rest<MOST> {
    #[inline]
    fn put(value: &&'a [u8], out: &mut Writer<'_>) {
        out.check(value.len(), 0, MOST);
        out.bytes(value);
    }

    #[inline]
    fn take(input: &mut Reader<'a>) -> Taken<&'a [u8]> {
        let len = input.left();
        if len > MOST {
            return Err(LONG);
        }
        input.bytes(len)
    }
}

impl<'a, const MOST: usize> Layout<'a, Vec<u8>> for Rest<MOST> {
    fn put(value: &Vec<u8>, out: &mut Writer<'_>) {
        <Self as Layout<'_, &[u8]>>::put(&&value[..], out);
    }

    fn take(input: &mut Reader<'a>) -> Taken<Vec<u8>> {
        input.take_as::<Self, &[u8]>().map(<[u8]>::to_vec)
    }
}

/// From `LEAST` to `MOST` items: their number, then each in its layout, which has a byte at least.
#[derive(Clone, Copy, Debug)]
pub struct List<C, const LEAST: usize, const MOST: usize, I = Plain>(PhantomData<(C, I)>);

impl<'a, T, C: Count, const LEAST: usize, const MOST: usize, I: Layout<'a, T>> Layout<'a, Vec<T>>
    for List<C, LEAST, MOST, I>
{
    fn put(value: &Vec<T>, out: &mut Writer<'_>) {
        let count = value.len();
        out.check(count, LEAST, MOST);
        put_count::<C>(count, out);
        value.iter().for_each(|item| I::put(item, out));
    }

    fn take(input: &mut Reader<'a>) -> Taken<Vec<T>> {
        let count = take_count::<C>(input)?;
        if !(LEAST..=MOST).contains(&count) {
            return Err(Malformed::ITEMS);
        }
        if count > input.left() {
            return Err(SHORT);
        }
        // The vector grows as items come: what is allocated follows from what is there.
        (0..count).map(|_| I::take(input)).collect()
    }
}

/// From `LEAST` to `MOST` items, which go on to the message's end.
#[derive(Clone, Copy, Debug)]
pub struct ListToEnd<const LEAST: usize, const MOST: usize, I = Plain>(PhantomData<I>);

impl<'a, T, const LEAST: usize, const MOST: usize, I: Layout<'a, T>> Layout<'a, Vec<T>>
    for ListToEnd<LEAST, MOST, I>
{
    fn put(value: &Vec<T>, out: &mut Writer<'_>) {
        out.check(value.len(), LEAST, MOST);
        value.iter().for_each(|item| I::put(item, out));
    }

    fn take(input: &mut Reader<'a>) -> Taken<Vec<T>> {
        let mut items = Vec::new();
        while input.left() > 0 {
            if items.len() == MOST {
                return Err(Malformed::ITEMS);
            }
            items.push(I::take(input)?);
        }
        if items.len() < LEAST {
            return Err(Malformed::ITEMS);
        }
        Ok(items)
    }
}

/// In messages from version `VERSION` on; the default value where an earlier one does not say.
#[derive(Clone, Copy, Debug)]
pub struct Since<const VERSION: u8, I = Plain>(PhantomData<I>);

impl<'a, T: Default, const VERSION: u8, I: Layout<'a, T>> Layout<'a, T> for Since<VERSION, I> {
    fn put(value: &T, out: &mut Writer<'_>) {
        if out.version() >= VERSION {
            I::put(value, out);
        }
    }

    fn take(input: &mut Reader<'a>) -> Taken<T> {
        if input.version() >= VERSION {
            I::take(input)
        } else {
            Ok(T::default())
        }
    }
}

const LONG: Malformed = Malformed("too many bytes");
