@0xd3a1f0c48e5b7261;
# The questions of admins to a coordinator: its audit and accounts, and that it goes on as its program's newest version.
# A Session is one of these, too; PermissionDenied for who is no admin.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("tessera::wire");

interface Administration {
  readBook @0 (query :BookQuery) -> (isRead :Bool, page :BookPage);
  # One step of a read, or its first: the coordinator reads its database elsewhere, and the caller asks the same again until
  # the page is there. Another query takes the place of the one before. FailedPrecondition where no book is kept.
  upgrade @1 (begin :Bool) -> (state :UpgradeState);
  # Begins one, or says how far it is. A coordinator that becomes another program closes its connections; the one that
  # goes on has a larger epoch. FailedPrecondition where there is no state folder.
}

struct BookQuery {
  table @0 :Table;
  enum Table { audit @0; usage @1; }
  sinceMs @1 :Int64;
  # Since 1970.
  tenant @2 :Text;
  # The tenant whose rows are wanted; empty: all.
  verb @3 :Text;
  # The kind of entry that is wanted; empty: all.
  bySession @4 :Bool;
  # A row of usage for each session of a tenant.
  after @5 :Cursor;
  # Where the page before ended.
}

struct Cursor {
  timeMs @0 :Int64;
  row @1 :Int64;
}

struct BookPage {
  audit @0 :List(AuditRow);
  usage @1 :List(UsageTotal);
  next @2 :Cursor;
  hasMore @3 :Bool;
}

struct AuditRow {
  timeMs @0 :Int64;
  verb @1 :Text;
  tenant @2 :Text;
  token @3 :Text;
  # Its id.
  session @4 :UInt64;
  object @5 :Text;
  decision @6 :Text;
  why @7 :Text;
}

struct UsageTotal {
  tenant @0 :Text;
  session @1 :UInt64;
  name @2 :Text;
  deviceNs @3 :Int64;
  mostBytes @4 :Int64;
  # On a worker, at most.
  uploadedBytes @5 :Int64;
  downloadedBytes @6 :Int64;
  refused @7 :Int64;
}

struct UpgradeState {
  phase @0 :Phase;
  enum Phase { serving @0; looking @1; refused @2; }
  # Nothing is under way; the program on the disk is asked whether it can go on; it can't.
  why @1 :Text;
  # Why it was refused.
  epoch @2 :UInt64;
  version @3 :Text;
  pid @4 :Int32;
}
