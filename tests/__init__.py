from tests import type_checks as type_checks  # the hook that checks types imports `tests` alone
