"""Operations on a projection's history: rebuild into a shadow copy, and reset of offsets."""
