import { mount } from 'svelte';
import '../../lib/base.css';
import Rooms from './Rooms.svelte';

mount(Rooms, { target: document.getElementById('app')! });
